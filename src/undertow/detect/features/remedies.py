"""Remedies that conditions of several codes give. One that only one condition gives stands in its file."""

from undertow.schema import Remedy

GUARD_THE_OPERATION = Remedy(
    "guard-the-operation",
    "Keep the operation away from the point where its derivative is infinite.",
    "x.clamp_min(1e-6).sqrt()          # not x.sqrt()\n"
    "x.clamp_min(1e-6).log()           # not x.log()\n"
    "(x * x).sum(-1).add(1e-6).sqrt()  # not x.norm(dim=-1)\n"
    "x / (y + 1e-6)                    # not x / y, where y may be zero",
    "An epsilon that is too large biases the result; 1e-6 is far below what training notices.",
    when_not="The values had grown out of all proportion before: then the training diverged.",
)
CLEAN_THE_INPUTS = Remedy(
    "clean-the-inputs",
    "Look for NaN and infinity in the data themselves, and replace or leave out what holds them.",
    "bad = ~torch.isfinite(inputs).flatten(1).all(1)\n"
    "print(bad.nonzero().flatten())  # the samples that hold them\n"
    "inputs, targets = inputs[~bad], targets[~bad]",
    "What is left out is not learnt: mend the data where it comes from.",
    when_not="The data are finite, and the first layer itself makes the value.",
)
FIND_THE_OPERATION = Remedy(
    "find-the-operation",
    "Let autograd name the line that produced the value: run a few steps with anomaly detection.",
    "with torch.autograd.detect_anomaly():\n    loss = compute_loss(batch)\n    loss.backward()",
    "Training is several times slower while it is on; switch it off afterwards.",
    when_not="The value appears after days: go back to the last checkpoint before it first.",
)
SKIP_BAD_STEPS = Remedy(
    "skip-bad-steps",
    "Do not step on a gradient that is not finite, so that one bad batch cannot destroy the weights.",
    "clip = torch.nn.utils.clip_grad_norm_\n"
    "norm = clip(model.parameters(), float('inf'))  # only measures it\n"
    "if torch.isfinite(norm):\n    optimizer.step()\noptimizer.zero_grad()",
    "It hides the cause: if many steps are skipped, the operation still needs its guard.",
    when_not="Every step would be skipped: then nothing is learnt.",
)
SMALLER_LOSS_SCALE = Remedy(
    "smaller-loss-scale",
    "Let the scaler start lower, or train in bfloat16, which needs no loss scale.",
    'scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)\n'
    "# or, without any scaler:\n"
    'with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = compute_loss(batch)',
    "A scale that is too low lets small gradients round to zero in float16; bfloat16 does not have that problem.",
    when_not="The scaler skips a step now and then only: that is how it works.",
)
KEEP_VALUES_IN_RANGE = Remedy(
    "keep-values-in-range",
    "Compute this part in float32 or bfloat16: float16 ends at 65,504.",
    'layer = $layer\nwith torch.autocast("cuda", enabled=False):\n    out = layer(x.float())',
    "A little slower there.",
    when_not="Values overflow float32, too: then the training diverged.",
)
USUAL_NORMALISATION_SETTINGS = Remedy(
    "usual-normalisation-settings",
    "Set what is unusual about the normalisation (eps, momentum) back to its default.",
    "layer = $layer\n$norm_settings",
    "Running statistics take some hundred steps to settle.",
    when_not="They were chosen for a pretrained model that expects them.",
)
FREEZE_OPENLY = Remedy(
    "freeze-openly",
    "If these layers are meant to stay as they are, say so.",
    "layer = $layer\nlayer.requires_grad_(False)",
    "They will not learn; that is the point.",
    when_not="They are meant to learn.",
)
CLEAR_GRADIENTS = Remedy(
    "clear-gradients",
    "Clear the gradients once per optimizer step.",
    "optimizer.zero_grad()\nloss.backward()\noptimizer.step()",
    "The learning rate that worked with growing gradients may now be too small.",
    when_not="Between the micro-batches of one step: there they are meant to add up.",
)
ADD_NORMALISATION_OR_SHORTCUTS = Remedy(
    "add-normalisation-or-shortcuts",
    "Give the gradient a short way back: a residual connection around each block, or a LayerNorm before it.",
    "def forward(self, x):\n    return x + self.block(self.norm(x))  # a LayerNorm",
    "It is another architecture: old checkpoints do not fit.",
    when_not="The model is only a few layers deep.",
)
CLIP_GRADIENTS = Remedy(
    "clip-gradients",
    "Clip the norm of the gradient between backward() and step().",
    "loss.backward()\ntorch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=$clip_bound)\noptimizer.step()",
    "It treats the symptom: if most steps are clipped, look for what makes the gradients large.",
    when_not="Gradients are too small, or the learning rate is far too high: clipping only hides that.",
)
USE_LARGER_BATCHES = Remedy(
    "use-larger-batches",
    "Average over more samples per step: a larger batch, or more micro-batches per step.",
    "accumulate = 4\n"
    "for index, batch in enumerate(loader):\n"
    "    (compute_loss(batch) / accumulate).backward()\n"
    "    if (index + 1) % accumulate == 0:\n"
    "        optimizer.step()\n"
    "        optimizer.zero_grad()",
    "Fewer steps per epoch; more memory when the batch itself grows.",
    when_not="The loss still falls well: noise is then no obstacle.",
)
GUARD_AGAINST_SPIKES = Remedy(
    "guard-against-spikes",
    "Clip to a little above the usual norm, and look at the batch of the step at which it jumped.",
    "clip = torch.nn.utils.clip_grad_norm_\n"
    "norm = clip(model.parameters(), max_norm=$clip_bound)\n"
    "if norm > $clip_alarm:\n"
    "    print('unusual batch', index, float(norm))",
    "A threshold that is too low clips every step.",
    when_not="The jump comes from a change of the schedule or of the data that you made.",
)
KEEP_A_FLOAT32_MASTER_COPY = Remedy(
    "keep-a-float32-master-copy",
    "Keep the weights in float32 and compute in low precision.",
    "model = model.float()\nwith torch.autocast(device_type, dtype=torch.bfloat16):\n    loss = compute_loss(batch)",
    "Twice the memory for the weights.",
    when_not="The weights are in float32 already.",
)
RAISE_THE_GROUP_RATE = Remedy(
    "raise-the-group-rate",
    "Give the parameter group a learning rate that fits the others, or freeze it openly.",
    "layer = $layer\n"
    "mine = {id(p) for p in layer.parameters()}\n"
    "for group in optimizer.param_groups:\n"
    "    if any(id(p) in mine for p in group['params']):\n"
    "        group['lr'] = $raised_group_rate",
    "A layer that starts to move changes the training.",
    when_not="A schedule raises it later on purpose.",
)
LET_ONLY_THE_OPTIMIZER_WRITE = Remedy(
    "let-only-the-optimizer-write",
    "Find the line that writes to the weights between steps (copy_, clamp_, reset_parameters, load_state_dict, "
    ".data) and take it out.",
    "weight = $tensor\n"
    "kept = weight.detach().clone()  # right after optimizer.step()\n"
    "assert torch.equal(weight, kept)  # further down, until it fails",
    "None; it only looks. What the line was for must then be done elsewhere, as an average in a model of its own.",
    when_not="The weights are projected on purpose, and the bound is right.",
)
UNFREEZE = Remedy(
    "unfreeze",
    "If a layer was frozen by mistake, release it before the optimizer is built, or give it to the optimizer then.",
    "layer = $layer\n"
    "layer.requires_grad_(True)\n"
    "groups = optimizer.param_groups\n"
    "held = {id(p) for group in groups for p in group['params']}\n"
    "missing = [p for p in layer.parameters() if id(p) not in held]\n"
    "if missing:\n"
    "    optimizer.add_param_group({'params': missing})",
    "More memory and time per step, and layers that were fixed begin to change.",
    when_not="It is frozen on purpose.",
)
REVIVE_THE_UNITS = Remedy(
    "revive-the-units",
    "Give the units a way back: a leaky activation, and biases that start at zero.",
    "activation = torch.nn.LeakyReLU(0.01)  # not torch.nn.ReLU()\nlayer = $layer\ntorch.nn.init.zeros_(layer.bias)",
    "A leaky activation changes the function a little; pretrained weights expect the one they had.",
    when_not="The units died of a learning rate or of inputs that are too large: those come first.",
)
INITIALISE_FOR_THE_ACTIVATION = Remedy(
    "initialise-for-the-activation",
    "Initialise the weights for the activation behind them: He for ReLU, Xavier with its gain for tanh.",
    "$initialise",
    "Loaded weights are overwritten if it runs after loading.",
    when_not="Weights are pretrained, or a normalisation layer follows each of them.",
)
REINITIALISE_THE_LAYER = Remedy(
    "reinitialise-the-layer",
    "Give this layer the initialisation of the others.",
    "$layer.reset_parameters()",
    "What the layer has learnt is lost.",
    when_not="Its scale is meant, as a zero-initialised branch or a temperature is.",
)
DECAY_THE_WEIGHTS = Remedy(
    "decay-the-weights",
    "Use decoupled weight decay on matrices, or a normalisation layer, so that weights cannot grow without end.",
    "$build_some_decay",
    "Decay that is too strong makes the model underfit.",
    when_not="The loss still improves and the growth slows down.",
)
LOWER_LEARNING_RATE = Remedy(
    "lower-the-learning-rate",
    "Restart from the last good checkpoint with a learning rate$lower_rate.",
    "$build_lower_rate",
    "Slower progress if the learning rate was not the cause.",
    when_not="Updates are already small, or gradients vanish.",
)
RAISE_LEARNING_RATE = Remedy(
    "raise-the-learning-rate",
    "Train with a higher learning rate$higher_rate.",
    "$build_higher_rate",
    "Too much of it diverges: watch the first steps.",
    when_not="You are within a warm-up, or the loss has converged.",
)
WARM_UP = Remedy(
    "warm-up",
    "Start with a small learning rate and raise it over the first few hundred steps.",
    "warm_up = torch.optim.lr_scheduler.LinearLR(\n"
    "    optimizer, start_factor=0.01, total_iters=500\n"
    ")  # warm_up.step() after every optimizer.step()",
    "None but a slower start.",
    when_not="The trouble begins long after the start.",
)
LOWER_THE_WEIGHT_DECAY = Remedy(
    "lower-the-weight-decay",
    "Use an ordinary weight decay, such as $small_decay: at this learning rate it takes at most 0.01% of a weight.",
    "$build_small_decay",
    "Weights grow a little more.",
    when_not="The decay is ordinary, and weights shrink because the gradient makes them.",
)
SMALL_EPS = Remedy(
    "small-eps",
    "Set eps to $small_eps: it must be far below the size of the gradients.",
    "$build_small_eps",
    "Steps become larger at once; have the learning rate ready to come down.",
    when_not="It was raised for gradients in half precision: then 1e-6 is enough.",
)
USUAL_MOMENTUM = Remedy(
    "usual-momentum",
    "Use a momentum of 0.9: with more, the step follows gradients of hundreds of steps ago.",
    "$build_usual_momentum",
    "Less smoothing of noisy gradients.",
    when_not="The momentum is 0.9 or less already.",
)
OVERFIT_ONE_BATCH = Remedy(
    "overfit-one-batch",
    "Train on a single batch: a loss that does not go to zero there shows a fault in model, loss or labels.",
    "batch = next(iter(loader))\nfor _ in range(200):\n    loss = train_step(batch)\nprint(loss)",
    "None; it only looks.",
    when_not="The loss has a floor by design, as with label smoothing or noise.",
)
STANDARDISE_THE_INPUTS = Remedy(
    "standardise-the-inputs",
    "Bring the inputs to mean zero and standard deviation one, with statistics of the training set.",
    "mean, std = inputs.mean(0), inputs.std(0).clamp_min(1e-6)\n"
    "inputs = (inputs - mean) / std  # the same two at validation",
    "The same statistics must be kept for validation and use.",
    when_not="A normalisation layer already follows the inputs.",
)
INSPECT_THE_BATCH = Remedy(
    "inspect-the-batch",
    "Look at the batch of the step at which it jumped, and leave such batches out.",
    "largest = inputs.abs().max()\n"
    "if not torch.isfinite(largest) or largest > 100:\n"
    "    print('unusual batch', index, float(largest))\n"
    "    continue",
    "What is left out is not learnt: mend the data where it comes from.",
    when_not="Every batch looks like that: then the scale of the inputs is the fault.",
)
CHECK_THE_LABELS = Remedy(
    "check-the-labels",
    "Look at a few samples next to their labels: inputs and labels must be shuffled and sliced together.",
    "inputs, targets = next(iter(loader))\n"
    "for sample, target in zip(inputs[:8], targets[:8]):\n"
    "    print(target, sample.flatten()[:6])",
    "None; it only looks.",
    when_not="The task is known to be hard, and the loss needs more steps to move.",
)
SHUFFLE_THE_DATA = Remedy(
    "shuffle-the-data",
    "Shuffle the data, so that every batch holds a mixture.",
    "loader = torch.utils.data.DataLoader(\n    dataset, batch_size=64, shuffle=True\n)",
    "None; a curriculum that was meant is lost.",
    when_not="The order carries meaning, as in a stream or a curriculum.",
)
AVERAGE_THE_MICRO_BATCHES = Remedy(
    "average-the-micro-batches",
    "Divide the loss of every micro-batch by their number, or the learning rate by it.",
    "accumulate = $accumulate\nloss = compute_loss(batch) / accumulate\nloss.backward()",
    "Steps become smaller by that factor: a rate tuned for the sum must be raised.",
    when_not="The loss is a sum over samples on purpose and the rate was chosen for it.",
)
DROP_UNUSED_PARAMETERS = Remedy(
    "drop-unused-parameters",
    "Leave modules that never run out of the optimizer, or call them in forward().",
    "layer = $layer\n"
    "unused = set(layer.parameters())\n"
    "used = [p for p in model.parameters() if p not in unused]\n"
    "optimizer = $optimizer(used)",
    "None, if they are really unused.",
    when_not="They run in some steps only, as experts and early exits do.",
)
FREE_THE_LAST_LAYER = Remedy(
    "free-the-last-layer",
    "Leave the last layer without an activation: the loss takes its outputs as they are.",
    "logits = head(hidden)  # not torch.relu(head(hidden))\nloss = torch.nn.functional.cross_entropy(logits, target)",
    "None.",
    when_not="The outputs must be positive and the loss expects that.",
)
NORMALISE_QUERIES_AND_KEYS = Remedy(
    "normalise-queries-and-keys",
    "Normalise queries and keys before their product, so that attention logits cannot grow.",
    "query = torch.nn.functional.normalize(query, dim=-1) * scale\nkey = torch.nn.functional.normalize(key, dim=-1)",
    "It is another architecture: old checkpoints do not fit.",
    when_not="Every block shows it at once: then the learning rate comes first.",
)
BALANCE_THE_ROUTER = Remedy(
    "balance-the-router",
    "Add a loss that rewards an even load over the experts, and a little noise before the choice.",
    "share = torch.nn.functional.one_hot(chosen, experts).float().mean(0)\n"
    "loss = loss + 0.01 * experts * (share * gates.mean(0)).sum()",
    "A weight that is too large keeps the experts from specialising.",
    when_not="The data really needs one expert only.",
)
ANNEAL_THE_PRIOR = Remedy(
    "anneal-the-prior",
    "Raise the weight of the prior term slowly from zero, and let each latent keep a little information.",
    "weight = min(1.0, step / 1000)\nloss = reconstruction + weight * divergence.clamp_min(0.05).sum()",
    "A longer training; the free bits set a floor under the divergence.",
    when_not="The model has no such term (it is no variational autoencoder).",
)
KEEP_THE_OUTPUTS_APART = Remedy(
    "keep-the-outputs-apart",
    "Let the loss reward outputs that differ: more negatives, a variance term, or a predictor on one side only.",
    "spread = (embedding.var(dim=0) + 1e-4).sqrt()\nloss = loss + torch.relu(1.0 - spread).mean()",
    "A weight that is too large drowns the task itself.",
    when_not="The loss compares outputs with targets, or all inputs of the batch are alike: then the data comes first.",
)
TURN_THE_TERM = Remedy(
    "turn-the-term",
    "Turn the sign of the term that has no floor: what is to become small is added to the loss, not subtracted.",
    "loss = error + 0.01 * penalty  # not error - 0.01 * penalty\nloss.backward()",
    "None.",
    when_not="It is a reward or a likelihood, which is meant to grow.",
)
MIND_THE_SIGN = Remedy(
    "mind-the-sign",
    "Minimise the error itself: turn the sign of the loss, and give it targets in the range it expects.",
    "loss = torch.nn.functional.cross_entropy(logits, targets)\nloss.backward()",
    "None.",
    when_not="It is a reward or a likelihood, which is meant to grow.",
)
FIT_THE_TABLE_TO_THE_DATA = Remedy(
    "fit-the-table-to-the-data",
    "Make the table or the last layer as large as what occurs, or check how ids and labels are made.",
    "print(int(ids.min()), int(ids.max()), len(ids.unique()))\nprint(targets.bincount())",
    "None; it only looks.",
    when_not="The vocabulary is large and the run is short: rare rows have not come yet.",
)
BALANCE_THE_TERMS = Remedy(
    "balance-the-terms",
    "Bring the terms of the loss to the same order of size before they are added.",
    "terms = {'a': loss_a, 'b': loss_b}\n"
    "print({name: float(term) for name, term in terms.items()})\n"
    "loss = loss_a + (loss_a.detach() / loss_b.detach()) * loss_b",
    "The balance decides what the model becomes good at: choose it, do not only equalise it.",
    when_not="One term is small on purpose, as a regulariser is.",
)
USE_RELU_WITH_HE_INITIALISATION = Remedy(
    "use-relu-with-he-initialisation",
    "Replace sigmoid and tanh in the hidden layers by ReLU or GELU, with weights initialised for it.",
    "activation = torch.nn.ReLU()  # not Sigmoid(), in the hidden layers\n$initialise",
    "Outputs are no longer bounded; where bounded values are needed, keep the last sigmoid.",
    when_not="The weights are pretrained: they expect the activation they had.",
)
INITIALISE_AT_RANDOM = Remedy(
    "initialise-at-random",
    "Initialise the weights at random: equal units stay equal for ever.",
    "layer = $layer\ntorch.nn.init.kaiming_uniform_(layer.weight, a=5**0.5)\ntorch.nn.init.zeros_(layer.bias)",
    "None.",
    when_not="It is the last layer of a residual branch that starts at zero on purpose.",
)
GIVE_IT_TO_THE_OPTIMIZER = Remedy(
    "give-it-to-the-optimizer",
    "Build the optimizer after the model is complete, or add the missing parameters to it.",
    "groups = optimizer.param_groups\n"
    "held = {id(p) for group in groups for p in group['params']}\n"
    "missing = [p for p in model.parameters() if id(p) not in held]\n"
    "optimizer.add_param_group({'params': missing})",
    "The layers begin to move: a schedule tuned without them may need tuning again.",
    when_not="They are meant to stay as they are: then freeze them openly.",
)
LOWER_THE_GROUP_RATE = Remedy(
    "lower-the-group-rate",
    "Give this parameter group a learning rate like that of the others.",
    "layer = $layer\n"
    "mine = {id(p) for p in layer.parameters()}\n"
    "for group in optimizer.param_groups:\n"
    "    if any(id(p) in mine for p in group['params']):\n"
    "        group['lr'] = $group_rate",
    "The layer learns more slowly.",
    when_not="It is new among pretrained layers and meant to move faster.",
)
