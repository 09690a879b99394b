"""From requests to tokens: the table of running answers, slots, and the thread that steps them."""
