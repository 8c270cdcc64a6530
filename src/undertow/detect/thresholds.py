"""Every number a statistical rule decides by, in one place, grouped by code; each with the reason for its size.

Exact invariants (a gradient that is None, a weight that is NaN) have no threshold and are not here. The detection
benchmark prints the hash of this file, so that a change of any number shows.

Healthy figures in the comments are those of the catalogue of faults (519 weight matrices in 96 healthy runs) and of
the zoo of this repository.
"""

from __future__ import annotations

# -- numerics, gradients, updates (NUM, GRD, UPD) ------------------------------------------------------------------

# Has the loss made progress since the start? (GRD001, GRD002, GRD005, GRD008, GRD009, GRD010, UPD001, UPD002)
PROGRESS_DEVIATIONS = 4.0  # of a single loss: a median of nine batches hardly strays by two
PROGRESS_REMAINING = 0.9  # of the starting loss: learning the mean of the labels alone gains a few per cent

# UPD002, WGT.
WRITTEN = 1e-5  # by which a norm changes between two steps; rounding changes it by 1e-7

# -- activations, weights, modes, inputs (ACT, WGT, MOD, DAT001, DAT003) -------------------------------------------

# WGT002. Rows that began equal and are told apart by one random neighbour differ by 1e-3 after a single step.
EQUAL_ROWS = 1e-4


# WGT005. Weight decay at usual settings shrinks a weight by 1e-6 to 1e-3 a step.
SHRINKS_BY = 3e-3  # of itself, a step
RADIAL_SHARE = 0.7  # of the update that only shortens the weight; healthy updates turn it
SHRINKS_FAST_BY = 0.01  # at one step: so fast, that it is enough if
RADIAL_SHARE_FAST = 0.5  # …this share of the update does, as where a penalty in the loss turns weights, too
SHRINKING_TOGETHER = 0.6  # of the matrices; in no healthy training do so many at a single measured step
SHRUNK_ALONE_TO = 0.3  # of the start, for one matrix whose siblings do not shrink
SHRINK_FRAMES = 3
SHRINKING_LEARNS = 0.7  # of the square of what is left of the weights, which is what is left of a penalty on them
GROWN_BEFORE = 1.1  # times the start: targets that are large are overshot, and the weights come back
GONE_TO = 0.01  # of the start: no healthy matrix has lost so much
GONE_FRAMES = 2

# WGT006. A model that begins far below the loss of a guess was trained before.
TRAINED_BEFORE = 0.5  # cross-entropy at the start over ln(classes)
FORGETTING = 1.5  # loss over that at the start, and…
FORGETTING_DRIFT = 0.3  # …distance of half of the matrices from where they started
COPIED = 2e-6  # relative difference of two norms that cannot be chance
COPIED_LATE, COPIED_LATE_FROM = 0.01, 0.1  # the same, once training has changed the first of them by so much

SET_BACK_TRAVEL = 1.5  # times the steps between two measured ones, times the longer of their updates…
SET_BACK_NOISE = 0.15  # …and a share of the distance, which is known from sketches only
SET_BACK_SHARE = 0.6  # of the matrices
SET_BACK_TIMES = 2
OVERWRITTEN_AGAIN = 5  # steps since the time before: what is projected or clamped is written to at every step
OVERWRITTEN_JUMP = 3.0  # deviations of the loss, right after it

# -- optimisation, data, loss (OPT, DAT, LSS) ----------------------------------------------------------------------

# Steps that are too large (OPT007, LSS004). Median over matrices of update over weight; healthy trainings whose loss
# does not fall at once stay below 0.15.
LARGE_UPDATE = 0.2
ABOVE_FIRST = 1.03  # times the first loss is enough at the start where updates are large, for…
ABOVE_FOR = 3  # …so many steps in a row, or…
ABOVE_FOR_AT_LENGTH = 8  # …where RMSprop's first updates are ten times too long: five go by in health
LEAPS_TO = 1.5  # times the first loss: batch noise of an untrained model is a few per cent

# OPT001. Records: a loss so much above all before it. Batch noise makes one now and then, never a row of them that ends
# at twice the highest of the first losses.
DIVERGED_START = 10  # losses
DIVERGED_TO = 2.0
DIVERGED_RECORDS = 4
DIVERGED_BEYOND_DOUBT = 100.0  # times the start; less needs large updates as a witness, where targets may grow
DIVERGED_UPDATE = 0.1  # median over matrices
DIVERGED_AT_ONCE = 5.0  # times the first cross-entropy, and that of a guess: nine losses in a row, among…
DIVERGED_AT_ONCE_WITHIN = 40  # …so many first ones. A healthy warm-up may leap once, and comes back
THROWN_TO = 1.5  # times both, for the median of nine losses among them; 1.2 is the most in health
LEARNT_ACCURACY = 0.6  # of answers that are right: learnt, however few classes there are…
KEPT_ACCURACY = 0.9  # …and not lost: what rises is another term of the loss
RECORD_BY = 1.1
LEARNT_TO = 0.6  # share of the first loss: enough to lose
BACK_TO = 0.85  # of the first loss; all of the latest nine losses are above it…
BACK_FOR = 25  # …at so many steps in a row: another task, or harder data, is learnt by then…
BACK_STILL = 0.9  # …or is being learnt: the level of twelve steps ago has come down to less than this share

# OPT002.
PLATEAU_STEPS = 200
PLATEAU_REMAINING = 0.5
PLATEAU_GAIN = 5.0  # deviations: it did fall
PLATEAU_COSINE = 0.3  # of successive gradients; at a noise floor it is about 0

# OPT003. Healthy trainings with a constant rate and one task: at most 4 deviations, 7 with random depth.
SPIKE_DEVIATIONS = 8.0
SPIKE_RATIO = 2.718
SPIKE_CALM = 30  # losses before it…
SPIKE_ABOVE_RECENT = 2.0  # …the highest of which it exceeds so many times
SPIKE_CALM_BELOW = 3.0  # times the untrained loss: a run that has been above it is sick for another reason
SPIKE_LASTS = 15  # steps in which it must come back: a harder task takes longer
SPIKE_BACK = 1.5  # times the level before…
SPIKE_BACK_FOR = 3  # …at so many steps in a row
SPIKE_ABOVE_START = 1.2  # times the start, for a cross-entropy: worse than a guess
SPIKE_STEADY_TARGETS = 2.0  # largest over least deviation of a batch of targets, for a mean square: as natural
SPIKE_ABOVE_START_ELSE = 3.0  # for losses without a natural size, such as those of moving targets
SPIKE_LEARNT_PEAK = 1.1  # times its first loss: a spike that is highest when it begins, and…
SPIKE_LEARNT_STEPS = 5  # …takes so many steps to be over, none of which undoes half of it, is other data being learnt
SPIKE_EXTREME = 20.0  # times the start: neither harder data nor another task
SPIKE_SUDDEN = 1e4  # times the level before, in one step: steps that are too large take several to get there
SPIKE_AFTER_RISE = 40  # steps after a rise of the learning rate, which explains a spike

# OPT004. Swings: nine losses in a row that all keep clear of nine others.
WAVES = 6
WAVE_SHARE = 0.2  # gap between them, as a part of what was learnt…
WAVE_SHARE_OF_START = 0.1  # …and of the first loss
WAVE_LONGEST = 100  # steps, when only one swing is known
WAVE_FORGOTTEN = 4  # periods without a swing

# OPT005. Time to judge: random tokens and long plateaus at the start are healthy for a while.
NOT_LEARNING_STEPS = 60
NOT_LEARNING_VISITS = 25  # times that every row of a table can have been looked up: what is never seen is not learnt
NOT_LEARNING_REMAINING = 0.98  # of the first losses
NOT_LEARNING_ABOVE = 1.15  # …and not far above them: a task that becomes harder, such as to tell more and more apart
NOT_LEARNING_BEST = 0.93
NOT_LEARNING_NOISE = 0.02  # deviation of a loss over its size: more, and a change of 2 % is not seen
NOT_LEARNING_DRIFT = 0.33  # way of the median matrix over its size; parity of four bits begins to be learnt at 0.3
NOT_LEARNING_ANYWAY = 400  # steps
NOT_LEARNING_CHANCE = (0.96, 1.06)  # of the loss of a guess, for a classifier
NOT_LEARNING_AT_CHANCE = 150  # steps; healthy classifiers of the zoo have left it after 71
NOT_LEARNING_CHANCE_NOISE = 0.04

# OPT006.
OVERFIT_BY = 1.1
OVERFIT_VALUES = 3
OVERFIT_AFTER = 5

# OPT007. The learning rate. Share of the peak: (fewest steps below it, as a part of the steps above it). A cosine is
# below a thousandth of its peak for 2 % of its length, and below a hundredth for 6 %; a cubic decay for 10 and 21 %.
FALLEN_TO = {1e-3: (5, 0.15), 1e-2: (3, 0.3)}
FALLEN_REMAINING = 0.9  # share of the first loss that is still there: next to nothing was learnt…
FALLEN_GAIN = 8.0  # deviations of a single loss
FALLEN_WHILE_FALLING = 0.3  # …or so much is left, and the loss was falling when the rate went (not a plateau)
FALLEN_EVENLY = 20  # …or it shrank to one share of itself at so many steps in a row: cosines and lines do not
FALLEN_SAME_SHARE = 1e-3
FALLING_UNTIL = 0.2  # share of the peak
FALLING_SEEN = 24  # losses: with fewer, no trend is certain
NEVER_ABOVE = 0.02  # of the rate the optimizer was made with; warm-ups begin there and rise at every step…
NEVER_ABOVE_STEPS = 5  # …and this one has not risen for so many
RATE_LEAP = 5.0  # over the established peak; warm-ups rise in small steps
RATE_ESTABLISHED = 10  # steps without a larger rate
LEAP_PATIENCE = 15  # steps after a leap in which the loss must follow
LEAP_JUMP = 6.0  # deviations of the loss; healthy trainings with a constant rate: below 4, or 7 with random depth
IMPLAUSIBLE_START = 3.0  # first loss over that of a guess: inputs or initial weights are to blame
LARGE_UPDATE_LASTS = 20  # steps for which a large update may explain a loss
STUCK_AFTER = 25  # losses: what one leap of the loss at the start has not undone by then, it has broken
ONE_ANSWER_LABELS = 50.0  # to each class in use, to know the entropy of all labels to one per cent
ONE_ANSWER_FROM, ONE_ANSWER_TO = 0.98, 1.06  # of the loss of the best answer that is the same for all samples, while…
ONE_ANSWER_LOW = 0.93  # …none of the latest nine losses is below this
ONE_ANSWER_AFTER = 60  # losses, where one of the first steps was too large
TINY_UPDATE = 2e-5  # largest of all matrices; healthy matrices: 1 % below 7e-5
TINY_UPDATE_FRAMES, TINY_UPDATE_STEPS = 2, 10
UNEQUAL_RATES = 10.0  # of two optimizers in turn; recipes for adversaries use up to 5
UNEQUAL_RATES_OF_LONG_STEPS = 3.0  # where the faster one has moved half of its matrices by a tenth in one step
WON_TO, LOST_TO = 0.3, 1.5  # losses over their starts
WON_ALONE_TO = 0.15
WON_WHOLLY = 0.01  # at whatever rates, where…
WON_RISE = 0.5  # …the other's loss has risen by this share of its start
WON_FOR = 15  # steps in a row
SMALL_UPDATE = 2e-4  # half of healthy matrices move thirty times as fast
SMALL_UPDATE_STEPS = 100
SMALL_UPDATE_NOISE = 0.03  # deviation over the loss: more, and it cannot be seen to stand still

# OPT008. Settings of optimizers.
REBUILT_FRAMES = 3
REBUILT_TIMES = 3  # between epochs, with the same rate each time…
REBUILT_SAME_RATE = 0.01
REBUILT_WITHIN = 25  # steps: a momentum of 0.9 remembers ten
REBUILT_UNEVEN = 0.1  # …at intervals that are multiples of the shortest, but for this share
EPS_RATIO = 0.1  # median √v over eps; 1e2 to 1e7 in healthy trainings, 0.2 with branches that start next to zero
EPS_RATIO_FITS = 10.0  # median
EPS_RATIO_LARGEST = 100.0  # of any matrix: where one gradient is far above eps, the others are small for another reason
EPS_REMAINING = 0.7
EPS_UPDATE = 1e-3  # update over weight
EPS_FRAMES = 2
EPS_UNUSUAL = 1e-3  # Adam's; published recipes stay below it. Then a median √v below eps itself is enough
MOMENTUM_ABSURD = 0.998  # no published recipe comes near it
MOMENTUM_ABSURD_STEPS = 5
DECAY_ABSURD = 0.02  # of every weight at each step; published recipes: 1e-6 to 1e-3
DECAY_LARGE = 3e-3
DECAY_KEPT = 0.85  # of the largest norm
DECAY_REMAINING = 0.7
MOMENTUM = 0.995
MOMENTUM_STEPS = 40
MOMENTUM_REMAINING = 0.05
EXCHANGED_MOMENTUM = 0.98  # first beta; in published recipes the mean remembers at most as long as the scale
EXCHANGED_MEMORY = 5.0
LAG = 5.0  # √mean(g²/v̂), median over matrices; about 1 in healthy trainings
LAG_LASTS = 10  # steps; spikes come one to eight steps after it
LAG_RISE = 1.5
MEMORY_LONG = 0.004  # memory of the mean over that of the scale: 0.01 and more in published recipes
MEMORY_STEP = 1.2  # root mean square of a step over the rate; the first of all is 1
MEMORY_STEPS = 2  # looks within LAG_LASTS

# LSS003. A loss without a floor: so far below zero that it has doubled so often, as fast each time as the time before.
# Likelihoods fall below zero, too, and take longer for every doubling.
FLOOR_DOUBLINGS = 4
FLOOR_SLOWER = 1.2  # times the steps of the doubling before
FLOOR_FEWEST_STEPS = 4  # to a doubling
FLOOR_SEEN = 9  # losses by which the size of the first ones is known
FLOOR_PATIENCE = 2  # measured steps with such a form
# Targets that are the inputs, where a code of the whole sequence may lie between them: nobody learns one so soon.
COPIED_WITHIN = 100  # losses
COPIED_REMAINING = 0.2  # of the first loss
# Targets outside of the range of the function that comes last.
BEYOND_REACH = 0.1  # of their variance: noise around a limit is less
BEYOND_REACH_LOOKS = 2
# Micro-batches of one step that count alike whatever their size.
UNEQUAL_PARTS = 2.0  # times as much as another row
UNEQUAL_LOOKS = 4  # steps in a row: the last batch of an epoch is small, too

# LSS004. Several backward passes to a step.
ADDED_PATIENCE = 3  # steps with the same number of passes
ADDED_SEEN_EARLY = 5  # losses: a first loss is that of a guess only at the start
ADDED_WITHIN = 1.35  # factor by which the first loss may differ from the sum of guesses: two are told from one
ADDED_WITHIN_OF_MANY = 1.8  # many are told from one more easily than two
ADDED_MANY = 4
ADDED_JUMP = 4.0  # deviations
ADDED_NO_PROGRESS_AFTER = 10
