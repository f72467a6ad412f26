"""What is launched, and what never is.

before the first launch   plan       a study's distinct settings, and points refused by rule
                          preflight  settings that the installed engine refuses
on resuming               misfits    stored trials that mean nothing any more
                          strata     kinds of hardware, which are never compared
before each launch        families   settings that failures of their kin rule out
                          agenda     known, baseline, search or confirmation next
"""
