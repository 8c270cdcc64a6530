"""How well the diagnosis does, by training (`__main__`), by recording once (`record`) and by replaying the rules."""
