"""One request for all protocols: decoded, named as here, converted; then sampling parameters and prompts."""
