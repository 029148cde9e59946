"""Running code that a model wrote, so that it can neither do harm nor pass by a trick.

examination.py two sandboxed processes, one with the answer's code and one with its tests, and the verdict of the second
bubblewrap.py  a bubblewrap container for each process of ours, and guests in it, with every limit
seccomp.py     the system calls that a guest may make
warden.py      inside: forks the guests, each for one job, and gives up all it has for them
guest.py       what runs inside: the candidate (the answer's code) or the examiner (its tests)
wire.py        inside: the pipes between the two
assembly.py    inside: the program that an answer means, and the names that tests need
"""
