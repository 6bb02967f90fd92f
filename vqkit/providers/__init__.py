"""Who does the work: the contract (`base`), a plain function as provider, real clips offline."""
