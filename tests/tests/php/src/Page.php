<?php
interface Page
{
    public function answer(Request $request): Response;
}
