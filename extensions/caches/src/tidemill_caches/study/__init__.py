"""`tidemill cache study`: what a cache would do for one data set, measured, and the setting to use."""
