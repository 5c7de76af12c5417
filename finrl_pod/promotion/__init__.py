"""Whether a champion may be promoted: the rules, the gate and the register of trials."""
