"""All tests can import what is beside this file: pytest puts its folder on the path."""
