"""What measured launches are worth, pure: from records to a verdict.

while a launch runs    witness   what it is compared with
                       guard     broken answers cannot win (answers: how texts are compared)
                       pruning   passes that can change nothing are not sent
between launches       confirmation   the finalists and the baseline afresh
at the end             fairness  flags that differ though nobody sweeps them
                       verdict   the winner, and whether it beats the baseline
"""
