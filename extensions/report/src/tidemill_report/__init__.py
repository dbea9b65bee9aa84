"""Reports on campaigns, months and years, from the server or from its files: tables, one page, data frames."""
