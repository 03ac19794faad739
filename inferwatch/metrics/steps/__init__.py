"""What the scheduler does with single steps: its efficiency, its stalls."""
