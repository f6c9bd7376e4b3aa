"""Other frameworks: what convloom takes from them, gives to them, and is compared with."""
