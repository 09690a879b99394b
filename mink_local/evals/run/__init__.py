"""`mink-eval run`: ask every question with every sampler, and record each response."""
