"""`mink-eval run`: ask every question with every sampler, record each response, and report on them."""
