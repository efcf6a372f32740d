"""Keys that had another name: refused with the new one in a file, read as the new one in the record of a run."""

from __future__ import annotations

import pytest

from clusterctl.shared.errors import ConfigError
from clusterctl.shared.spec import Job, Resources, to_record
from clusterctl.shared.spec.records import RENAMED, from_record, from_stored, with_new_names


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_is_refused_in_a_file_and_read_in_a_record(old: tuple[str, ...], new: tuple[str, ...]) -> None:
    record = to_record(Job(name="a", workload="command", argv=("b",), resources=Resources(local_code=True)))
    (table, key), (_, name) = old, new
    earlier = {**record, table: {key if one == name else one: value for one, value in record[table].items()}}
    assert key in earlier[table]
    with pytest.raises(ConfigError, match=f"{key}: unknown key .did you mean {name}"):
        from_record(Job, earlier)
    job, skipped = from_stored(Job, earlier, newer=False)
    assert to_record(job) == record == with_new_names(earlier)
    assert skipped == ()
