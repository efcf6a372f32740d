"""Operations and commands on another machine: what is sent there, and what is answered."""
