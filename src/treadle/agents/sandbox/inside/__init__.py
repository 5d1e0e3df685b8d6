"""What runs in a sandbox before and around the program: it knows the standard library alone.

Nothing else of Treadle is in there. It has no rights that the program lacks; a program that imitates it spoils the
report on its own end, which the other side checks anyway.
"""
