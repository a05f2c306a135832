"""The custody of nodes: which pod may have which node, so that none is in two pods.

`custody` judges devices and hands them out. It asks `conflicts`, by what kubelet still lists of
this process (`listed_resources`), what pods were given (`record_table`) and which pods hold devices
(`holders`); `record_ends` finds what has ended. `record_files` shares the table with other
instances, in files that `record_store` reads and writes in the state directory (`state_dir`).
"""
