"""Bearer tokens by the WLCG profile: who stands behind one."""
