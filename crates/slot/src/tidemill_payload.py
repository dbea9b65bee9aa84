# placeholder until `make gen` copies src/tidemill/payload/__init__.py here
