"""Every failure class has a policy that tells people what it means and what to do."""

from __future__ import annotations

from tidemill.model.failure import POLICY, FailureClass


def test_every_class_has_a_policy_and_no_policy_lacks_its_class() -> None:
    assert set(POLICY) == set(FailureClass)


def test_every_policy_tells_a_meaning_and_a_next_step() -> None:
    for failure, policy in POLICY.items():
        assert policy.meaning, failure
        assert policy.next_step, failure
        assert not policy.meaning.endswith("."), failure


def test_what_is_not_the_jobs_fault_uses_up_no_retry() -> None:
    innocent = {
        FailureClass.PREEMPTED,
        FailureClass.NODE,
        FailureClass.LOST,
        FailureClass.BATCH,
        FailureClass.DISPATCH,
    }

    assert not [failure for failure in innocent if POLICY[failure].counts]


def test_a_failing_payload_uses_up_a_retry() -> None:
    guilty = {FailureClass.PAYLOAD, FailureClass.MEMORY, FailureClass.WALLTIME, FailureClass.PAYLOAD_SETUP}

    assert all(POLICY[failure].counts for failure in guilty)
