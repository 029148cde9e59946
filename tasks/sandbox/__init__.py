"""Running code that a model wrote, so that it can neither do harm nor pass by a trick.

examination.py two sandboxed processes, one with the answer's code and one with its tests, and the verdict of the second
bubblewrap.py  one Python process in a bubblewrap container, with every limit
seccomp.py     the system calls that such a process may make
guest.py       what runs inside: the candidate (the answer's code) or the examiner (its tests)
wire.py        inside: the pipes between the two
assembly.py    inside: the program that an answer means, and the names that tests need
"""
