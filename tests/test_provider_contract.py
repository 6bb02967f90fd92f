"""The contract suite for users' own providers: silent on a good one, plain about a bad one."""

import asyncio
from pathlib import Path
from typing import get_args

import pytest

from vqkit.errors import ProviderError
from vqkit.mock import MockProvider
from vqkit.provider_contract import provider_contract
from vqkit.providers.contract import AccountKey, Idempotency, Status, Submitted

REQUEST = {"prompt": "a fox", "seed": 7}


def found_of(mock: MockProvider, folder: Path, **broken: object) -> list[str]:
    adapter = mock.adapter()
    for name, replacement in broken.items():
        setattr(adapter, name, replacement)
    return asyncio.run(
        provider_contract(
            adapter, REQUEST, account=mock.account("a"), folder=folder, poll_s=0.01, limit_s=5
        )
    )


@pytest.mark.parametrize("kind", get_args(Idempotency))
def test_a_provider_of_each_kind_keeps_the_contract(kind: Idempotency, tmp_path: Path) -> None:
    with MockProvider(idempotency=kind, render_polls=1) as mock:
        assert found_of(mock, tmp_path / "made" / "by it") == []


def test_a_key_that_is_ignored_is_told(tmp_path: Path) -> None:
    with MockProvider(idempotency="none") as mock:
        adapter = mock.adapter()
        for kind in ("replay", "reject"):
            lying = MockProvider(idempotency=kind)
            capabilities = lying.capabilities()
            lying.stop()
            adapter.capabilities = capabilities
            found = asyncio.run(
                provider_contract(
                    adapter, REQUEST, account=mock.account("a"), folder=tmp_path, poll_s=0.01
                )
            )
            assert any(line.startswith(f"{kind}: the same key again") for line in found)


def test_success_without_a_result_is_told(tmp_path: Path) -> None:
    async def poll(handle: object, *, account: AccountKey) -> Status:
        return Status("succeeded")

    with MockProvider() as mock:
        assert "succeeded without a link: that is failed" in found_of(mock, tmp_path, poll=poll)


def test_a_handle_that_is_no_json_is_told(tmp_path: Path) -> None:
    async def submit(request: object, *, key: str, account: AccountKey, sink: object) -> Submitted:
        if account.key == "not-a-key":
            raise ProviderError("no", "auth")
        return Submitted({"id": (1, 2)})

    async def poll(handle: object, *, account: AccountKey) -> Status:
        return Status("failed")

    async def cancel(handle: object, *, account: AccountKey) -> str:
        return "yes"

    with MockProvider(idempotency="none") as mock:
        found = found_of(mock, tmp_path, submit=submit, poll=poll, cancel=cancel)
    assert any("a handle must be JSON" in line for line in found)
    assert any("the render ended as failed" in line for line in found)
    assert any("cancel gave 'yes'" in line for line in found)
