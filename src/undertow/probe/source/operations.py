"""What torch's functions do, as far as a line can be at fault for it."""

from typing import Any

# Names are without the underscores of operators and of operations in place.
CUTS = {
    "detach": "detach() returns a tensor without history",
    "data": ".data returns a tensor without history",
    "item": "item() returns a plain number",
    "tolist": "tolist() returns plain numbers",
    "numpy": "numpy() returns an array without history",
    "float": "float() returns a plain number",
    "array": "as an array it has no history",
    "tensor": "torch.tensor() copies values, not history",
    "no_grad": "gradients are switched off here",
}
TO_NUMBERS = frozenset({"item", "tolist", "numpy", "float", "array"})
FROM_NUMBERS = frozenset({"tensor", "as_tensor", "full", "full_like", "asarray", "from_numpy"})
SQUASHING = frozenset({"softmax", "sigmoid", "log_softmax", "logsigmoid", "softmin", "gumbel_softmax"})
LOSSES = frozenset({
    "cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss", "l1_loss",
    "smooth_l1_loss", "huber_loss", "kl_div", "poisson_nll_loss", "gaussian_nll_loss", "ctc_loss",
    "cosine_embedding_loss", "hinge_embedding_loss", "margin_ranking_loss", "multi_margin_loss",
    "multilabel_margin_loss", "multilabel_soft_margin_loss", "soft_margin_loss", "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
})  # fmt: skip
# As autograd calls them, by torch's own names.
UNSAFE = {
    "div": "Div", "truediv": "Div", "rtruediv": "Div", "rdiv": "Div", "true_divide": "Div", "divide": "Div",
    "sqrt": "Sqrt", "rsqrt": "Rsqrt", "log": "Log", "log2": "Log2", "log10": "Log10", "log1p": "Log1P", "exp": "Exp",
    "expm1": "Expm1", "reciprocal": "Reciprocal", "pow": "Pow", "rpow": "Pow", "square": "Pow", "acos": "Acos",
    "arccos": "Acos", "asin": "Asin", "atanh": "Atanh", "norm": "LinalgVectorNorm", "vector_norm": "LinalgVectorNorm",
    "std": "Std", "logsumexp": "Logsumexp", "cdist": "CdistBackward", "atan2": "Atan2", "half": "ToCopy",
}  # fmt: skip
# They hand on what they are given, in another shape, type or place.
HANDING_ON = frozenset({
    "getitem", "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "permute", "t", "T",
    "mT", "to", "type", "float", "double", "half", "bfloat16", "long", "int", "bool", "byte", "cpu", "cuda",
    "contiguous", "clone", "detach", "data", "index_select", "gather", "select", "narrow", "chunk", "split",
    "unbind", "expand", "expand_as", "repeat", "stack", "cat", "concat", "requires_grad", "pin_memory", "type_as",
    "view_as", "reshape_as", "movedim", "swapaxes", "ravel", "take", "as_tensor", "iter", "alias", "library",
})  # fmt: skip
# Arithmetic on two tensors, which may be of shapes that do not match.
ARITHMETIC = frozenset({
    "add", "sub", "mul", "div", "truediv", "rsub", "radd", "rmul", "rtruediv", "pow", "where", "maximum", "minimum",
    "subtract", "multiply", "divide", "true_divide", "dist", "pairwise_distance", "cosine_similarity",
})  # fmt: skip
# They say something about a tensor, or make another one of its shape; nothing of it flows on.
SAYING = frozenset({
    "size", "dim", "numel", "stride", "len", "zeros_like", "ones_like", "empty_like", "rand_like", "randn_like",
    "randint_like", "full_like", "new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "is_floating_point",
    "is_complex", "is_contiguous", "data_ptr", "element_size", "result_type", "storage_offset", "is_tensor",
    "register_hook", "retain_grad", "backward", "get_device", "untyped_storage", "is_nonzero", "is_same_size", "repr",
    "format", "hash", "broadcast_shapes", "is_set_to", "broadcast_tensors",
})  # fmt: skip
LIBRARY = "library"  # done by a library on its own account, whatever it is
PROPERTIES = frozenset({"data", "T", "mT", "H", "mH", "real", "imag"})
SETTERS = frozenset({"requires_grad", "data", "grad"})


def name_of(function: Any) -> tuple[str, bool]:
    """Without underscores, and whether it writes into what it is given; an empty name says nothing of interest."""
    name = getattr(function, "__name__", "")
    if name in ("__get__", "__set__", "__delete__"):
        attribute = getattr(getattr(function, "__self__", None), "__name__", "")
        if name == "__get__":
            return (attribute, False) if attribute in PROPERTIES else ("", False)
        return (attribute, True) if name == "__set__" and attribute in SETTERS else ("", False)
    if name.startswith("__"):
        short = name.strip("_")
        if short == "setitem":
            return short, True
        in_place = short.startswith("i") and short[1:] in _OPERATORS
        return (short[1:] if in_place else short), in_place
    return (name[:-1], True) if name.endswith("_") else (name, False)


_OPERATORS = frozenset({"add", "sub", "mul", "truediv", "div", "pow", "floordiv", "mod", "matmul", "and", "or"})
