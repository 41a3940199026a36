"""Whether tables can be trusted: Great Expectations suites, and coverage."""
