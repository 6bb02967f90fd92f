"""The contract on SQLite."""
from __future__ import annotations
import pytest
from store_contract import StoreContract
from vqkit.store.sqlite import SqliteStore

class TestSqlite(StoreContract):
    @pytest.fixture
    def store(self, clock, tmp_path):
        store = SqliteStore(tmp_path / "q.db", clock=clock)
        yield store
        store.close()
