"""The client libraries' own test suites, run against `headrace dev`."""
