"""What tokens cost, in money and energy."""
