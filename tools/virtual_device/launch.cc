// The launcher follows in its own change.
