"""The settings of `mink-chat`: options, and their values in a chat."""
