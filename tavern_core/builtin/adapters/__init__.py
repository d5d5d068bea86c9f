"""Tools of other systems. Each adapter imports what it needs when one of its tools is used."""
