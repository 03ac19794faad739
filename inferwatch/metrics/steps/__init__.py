"""Steps of the scheduler: their efficiency, and stalls."""
