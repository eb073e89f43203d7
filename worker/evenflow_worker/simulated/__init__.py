"""An engine without a GPU or a model: vLLM's scheduling and memory, with the time that an A100 would take."""
