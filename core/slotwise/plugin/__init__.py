"""How components are found, loaded one by one, checked against their contract, and chosen."""
