"""The command line: one file per subcommand, each imported in full only when it runs."""
