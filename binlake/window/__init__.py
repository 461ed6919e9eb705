"""Windows of commit_ts: how the next one is proposed, and the manifests that pin landed and applied windows."""

from binlake.window.manifest import ApplyManifest, MemberProof, WindowManifest
from binlake.window.plan import Blocker, Member, WindowPlan, propose_window

__all__ = ["ApplyManifest", "Blocker", "Member", "MemberProof", "WindowManifest", "WindowPlan", "propose_window"]
