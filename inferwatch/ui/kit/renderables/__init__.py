"""Drawing from numbers and a width alone: what plotext cannot draw."""
