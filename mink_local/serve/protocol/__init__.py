"""The OpenAI protocol: fields of requests and responses, errors, and how requests map to sampling."""
