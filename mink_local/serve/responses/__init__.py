"""/v1/responses: OpenAI's newer interface, whose answers are lists of items. Nothing is stored."""
