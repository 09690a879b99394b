"""`mink-serve`: a server that speaks OpenAI's protocol, with Min-k at any temperature."""
