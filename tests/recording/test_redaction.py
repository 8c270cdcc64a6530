"""No secret of a command line is written to the run; what is none stays readable."""

import pytest

from undertow.recording.redaction import REDACTED, redacted


@pytest.mark.parametrize(
    "command",
    [
        ["train.py", "--api-key=hunter2"],
        ["train.py", "--api_key", "hunter2"],
        ["train.py", "--token", "hunter2"],
        ["train.py", "--hf-token=hunter2"],
        ["train.py", "--hfToken=hunter2"],
        ["train.py", "-p", "x", "PASSWORD=hunter2"],
        ["train.py", "WANDB_API_KEY=hunter2"],
        ["train.py", "db.password=hunter2"],
        ["train.py", "--aws-secret-access-key", "hunter2"],
        ["train.py", "--db", "postgres://me:hunter2@host/data"],
        ["train.py", "--db=postgres://me:hunter2@host/data"],
        ["train.py", "--header", "Authorization: hunter2"],
        ["train.py", "--data", "https://host/data?version=3&token=hunter2"],
        ["train.py", "--data=https://store.example.com/x?sig=hunter2&se=2027"],
        ["train.py", "https://host:8080/x?a=1;api_key=hunter2"],
        ["train.py", "--config", '{"lr": 0.1, "api_key": "hunter2"}'],
        ["train.py", "--config={'db': {'password': 'hunter2'}}"],
        ["undertow", "run", "--sink", "slack:https://hooks.example.com/hunter2", "train.py"],
        ["undertow", "run", "--sink=webhook:https://example.com/hunter2", "train.py"],
    ],
)
def test_a_secret_is_left_out(command):
    kept = redacted(command)
    assert "hunter2" not in " ".join(kept)
    assert REDACTED in " ".join(kept)
    assert len(kept) == len(command)


@pytest.mark.parametrize(
    "secret",
    [
        "hf_aBcD3fGhIjKlMnOpQrStUvWxYz012345",
        "sk-proj-Ab3dEf6hIj9lMn2pQr5tUv8xYz",
        "0123456789abcdef0123456789abcdef01234567",
    ],
)
def test_what_looks_drawn_at_random_is_left_out_whatever_its_name(secret):
    for command in (["train.py", secret], ["train.py", "--user", secret], ["train.py", f"--user={secret}"]):
        assert secret not in " ".join(redacted(command))


@pytest.mark.parametrize(
    "command",
    [
        ["train.py", "--tokenizer", "bpe"],
        ["train.py", "--tokenizer=bpe", "--max-tokens", "512", "--token-dim=64"],
        ["train.py", "--lr=3e-4", "--model", "meta-llama/Llama-3.2-1B-Instruct", "key=value"],
        ["train.py", "--data", "/data/imagenet/train-2026-11-16/shard-00000-of-01024.tar"],
        ["train.py", "--resume", "runs/20261115-143002-baseline", "--seed", "12345678901234567890123"],
        ["train.py", "--sort-key", "length", "optimizer.weight_decay=0.01", "s3://bucket/run"],
        ["train.py", "--token", "--verbose"],
        [
            "train.py",
            "--config",
            '{"lr": 0.1, "tokenizer": "bpe", "sort_key": "length"}',
            "https://host:80/x?version=3&q=a",
        ],
        ["undertow", "run", "--sink", "tensorboard", "train.py"],
    ],
)
def test_everything_else_stays_readable(command):
    assert redacted(command) == command
