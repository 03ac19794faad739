"""The probe: observes vLLM's scheduler and front end without affecting them."""
