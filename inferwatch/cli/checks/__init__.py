"""What ``inferwatch doctor`` looks at, one module an area."""
