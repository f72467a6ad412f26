"""The command line's side: options, signals, what is shown while a sweep runs and what it leaves."""
