"""Trainings to judge the rules by, sick and healthy: plain PyTorch programs that know nothing of Undertow.

hospital    one sick training for each known fault, at several severities; the same program without the fault is its
            healthy twin. The 25 that `undertow demo` shows are in `undertow.demos` and count as patients, too
zoo         healthy trainings, many of them there to break a naive rule; with the hospital the development tier
practice    longer programs in the styles of other authors, by task, each with several faults; rules may be tuned on
            these
validation  the same, held out: nobody who writes a rule reads it before it has been measured
"""
