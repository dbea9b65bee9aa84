"""Grid Engine: 8.1.9 (Son of Grid Engine) runs in the tests; Univa's and Altair's print nearly the same."""
