"""Three machines on this one: network namespaces with a file system, processes and an sshd of their own."""
