"""The endpoints of mink-serve, a module for each group."""
