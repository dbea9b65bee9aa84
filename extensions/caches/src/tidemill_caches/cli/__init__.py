"""`tidemill cache VERB`: one file for each verb."""
