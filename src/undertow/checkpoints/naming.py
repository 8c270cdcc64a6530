"""What a name in a checkpoint says: which part of the model it is, and whether it is a weight at all."""

from collections import Counter
from collections.abc import Sequence

from undertow.schema import LayerKind
from undertow.schema.checkpoints import Skipped

BUFFER = "buffer"
# Parts that wrappers add (`torch.compile`, `DataParallel`): the same tensor has the same path with and without.
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_NOT_WEIGHTS = frozenset(
    {"optimizer", "optim", "optimizers", "optimizer_state", "optimizer_states", "optimizer_state_dict"}
    | {"lr_scheduler", "lr_schedulers", "scheduler", "scheduler_state_dict", "scaler", "grad_scaler", "loops"}
    | {"callbacks", "rng_state", "dataloader", "train_state"}
)
_CONTAINERS = ("state_dict", "model_state_dict", "model_state", "model", "module", "net", "network", "weights")
_RECURRENT = ("weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l")
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked", "inv_freq", "position_ids")
_EMBEDDING_WORDS = ("emb", "wte", "wpe")
_NORM_NAMES = ("ln", "bn", "gn")


def arrange(keys: Sequence[tuple[str, ...]]) -> tuple[dict[tuple[str, ...], str], list[Skipped], list[str]]:
    """The path of every weight among nested keys, what was left out as training state, and what was decided.

    The part of a saved dictionary that holds the model (`{"model": …, "optimizer": …}`) is no part of a path.
    """
    left_out: Counter[str] = Counter()
    weights: list[tuple[str, ...]] = []
    for key in keys:
        if len(key) > 1 and key[0].lower() in _NOT_WEIGHTS:
            left_out[key[0]] += 1
        else:
            weights.append(key)
    skipped = [Skipped(f"{part}.*", f"{number:,} tensors of training state") for part, number in left_out.items()]
    first = {key[0] for key in weights}
    if len(first) == 1 and all(len(key) > 1 for key in weights) and (only := first.pop()) in _CONTAINERS:
        return {key: ".".join(key[1:]) for key in weights}, skipped, [f"the weights are those under {only!r}"]
    return {key: ".".join(key) for key in weights}, skipped, []


def cleaned(paths: Sequence[str]) -> list[str]:
    """Paths without the parts that wrappers add, unless two would become one."""
    short = [_without_wrappers(path) for path in paths]
    return short if len(set(short)) == len(short) else list(paths)


def _without_wrappers(path: str) -> str:
    parts = [part for part in path.split(".") if part not in _WRAPPERS]
    while len(parts) > 1 and parts[0] == "module":
        del parts[0]
    return ".".join(parts) or path


def kind_of(path: str, shape: tuple[int, ...]) -> str:
    """From the name and the shape alone; a live module knows better."""
    *owners, last = path.lower().split(".")
    owner = owners[-1] if owners else ""
    if last.startswith(_STATISTICS):
        return BUFFER
    if last.startswith(_RECURRENT):
        return LayerKind.BIAS if last.startswith("bias") else LayerKind.RECURRENT
    norm = "norm" in owner or owner.rstrip("0123456789_f") in _NORM_NAMES
    if last == "bias" or last.endswith("_bias"):
        return LayerKind.NORM_SHIFT if norm else LayerKind.BIAS
    if len(shape) == 1 and last in ("weight", "scale", "gamma", "g"):
        # A vector called weight is the scale of a normalisation: no other common layer has one.
        return LayerKind.NORM_SCALE
    if len(shape) == 2 and any(word in part for part in (owner, last) for word in _EMBEDDING_WORDS):
        return LayerKind.EMBEDDING
    if len(shape) >= 2:
        return LayerKind.WEIGHT
    return LayerKind.PARAMETER
