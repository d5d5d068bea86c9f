"""Models behind OpenAI-compatible APIs: `model.OpenAILLM`."""
